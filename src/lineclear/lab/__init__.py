"""The lab: reads, writes and replays traces; asks servers, judges their answers, counts what goes wrong."""
