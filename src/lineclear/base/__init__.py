"""What every other package may rely on: ids and the error tree."""
