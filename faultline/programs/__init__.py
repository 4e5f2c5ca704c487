"""Models and trainings made from a spec, with what every engine is known to do with them.

For others: `drawing`, `fault`, `files`, `program`, `sampling`, `truth`.

The files that `files` writes import `build`, `loop` and `inject`, in the ranks.
"""
