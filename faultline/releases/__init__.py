"""Questions about releases: is-safe, bisect, reproduce, timeline."""
