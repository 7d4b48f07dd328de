"""Which worker pair gets a sequence, and which workers are to be trusted. Pure: time is an argument."""
