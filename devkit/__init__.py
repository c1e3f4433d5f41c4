"""What developers, tests, demo and benchmarks use around the product; not in the wheel."""
