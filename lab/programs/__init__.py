"""Models and trainings made from a spec, with what every engine is known to do with them.

For others: `drawing`, `fault`, `in_trl`, `program`, `refusals`, `sampling`, `settings`, `target`, `training`.

The files that `target` writes import `build` and `target`, in the ranks, which run `inject` for a fault.
"""
