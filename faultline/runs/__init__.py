"""The supervisor's side: rank servers, hangs, the oracle's judgement, results on disk."""
