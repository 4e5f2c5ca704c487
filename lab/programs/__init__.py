"""Models and trainings made from a spec, with what every engine is known to do with them.

For others: `drawing`, `faulty`, `fault`, `files`, `in_trl`, `program`, `refusals`, `sampling`, `settings`, `training`.

The files that `files` writes import `build`, `ways` and `inject`, in the ranks.
"""
