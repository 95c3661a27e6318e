"""Files that go into every page as they are."""
