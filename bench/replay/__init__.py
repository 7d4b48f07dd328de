"""What `bench.bench_replay_schedule` needs."""
