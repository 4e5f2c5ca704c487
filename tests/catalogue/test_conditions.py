"""Each way in which a failure shows says what of a project it takes, so that `audit` can't be sure without it."""

from faultline.catalogue.loading import failures


def test_each_broken_variant_says_what_of_a_project_it_takes():
    """Breaks when audit is certain of a failure for its trainer and strategy alone, though only own code shows it."""
    silent, own_code, plain_too = [], [], []
    for failure in failures().values():
        for variant in failure.variants:
            name = f"{failure.name}/{variant.name}"
            if variant.broken and not (variant.needs or variant.look_for or variant.plain):
                silent.append(name)
            if variant.broken and variant.text and not (variant.needs or variant.look_for):
                own_code.append(name)
            if variant.plain and (variant.needs or variant.look_for):
                plain_too.append(name)
    assert not silent, "recognise.toml has no [project.VARIANT] with `needs`, `look_for`, or why it is `plain`"
    assert not own_code, "a variant with code of its own has to say what of it to look for"
    assert not plain_too, "what takes a setting or code is not plain"
