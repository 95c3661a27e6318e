"""Files that go into every kit as they are."""
