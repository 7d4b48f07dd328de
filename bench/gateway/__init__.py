"""Parts of `bench_gateway`: a worker that computes nothing, and a load of long prompts."""
