"""Models and trainings made from a spec, with what every engine is known to do with them.

For others: `build`, `fault`, `files`, `inject`, `sampling`, `spec`, `truth`.
"""
