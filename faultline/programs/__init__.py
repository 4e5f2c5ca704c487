"""Models and trainings made from a spec, with what every engine is known to do with them.

For others: `fault`, `files`, `sampling`, `truth`.

The files that `files` writes import `build` and `inject`, in the ranks.
"""
