"""What every rank must decide alike, as plain data: who computes what, who stores what, what is sent."""
