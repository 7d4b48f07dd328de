"""Speed, as ratios against a baseline measured in the same run.

python -m bench [--json FILE] [--only NAME ...]
"""
