"""A run shown to people and to CI."""
