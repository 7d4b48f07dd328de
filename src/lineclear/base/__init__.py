"""What every other package may rely on: ids, the error tree, the clock's shape."""
