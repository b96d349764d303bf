import json

from muster.volumes.lineage import FileDifference, ancestors, compare, document


def test_a_model_is_traced_to_its_rows(work, store):
    raw = work.run("a-1", {"x": b"1"}, volume="raw")
    features = work.run("a-2", {"x": b"2"}, volume="features", inputs={"rows": raw})
    table = work.run("a-3", {"x": b"2"}, volume="table", inputs={"rows": raw})
    model = work.run("a-4", {"x": b"3"}, volume="model", inputs={"features": features, "table": table})
    steps = list(ancestors(store, "model"))
    assert [(s.address, s.depth, s.reader, s.name) for s in steps] == [
        (model.address, 0, "", ""),
        (features.address, 1, model.address, "features"),
        (table.address, 1, model.address, "table"),
        (raw.address, 2, features.address, "rows"),
    ]
    assert [s.record.job_id for s in steps] == ["a-4", "a-2", "a-3", "a-1"]


def test_the_way_back_ends_at_a_record_that_may_not_be_looked_into(work, store):
    raw = work.run("a-1", {"x": b"1"}, volume="raw")
    features = work.run("a-2", {"x": b"2"}, volume="features", inputs={"rows": raw})
    model = work.run("a-3", {"x": b"3"}, volume="model", inputs={"features": features})
    steps = ancestors(store, "model", through=lambda record: record.volume != "features")
    assert [step.address for step in steps] == [model.address, features.address]


def test_a_version_of_another_store_ends_the_walk(work, store):
    elsewhere = type(work)(store.layout.root.parent / "elsewhere").run("a-1", {"x": b"1"}, volume="raw")
    work.run("a-2", {"x": b"2"}, volume="features", inputs={"rows": elsewhere})
    assert [(s.address, s.record is None) for s in ancestors(store, "features")][1] == (
        elsewhere.address,
        True,
    )


def test_a_difference_names_every_file(work, store):
    first = work.run("a-1", {"same": b"1", "gone": b"22", "grown": b"1"})
    second = work.run("a-2", {"same": b"1", "new": b"333", "grown": b"12"})
    assert compare(store.manifest(first.address), store.manifest(second.address)) == FileDifference(
        added={"new": 3}, removed={"gone": 2}, changed={"grown": (1, 2)}, same_files=1
    )


def test_lineage_as_a_document_tells_who_made_what_from_what(work, store):
    elsewhere = type(work)(store.layout.root.parent / "elsewhere").run("a-1", {"x": b"1"}, volume="raw")
    features = work.run("a-2", {"x": b"2"}, volume="features", inputs={"rows": elsewhere})
    model = work.run("a-3", {"x": b"3"}, volume="model", inputs={"features": features})
    told = document(store, "model")
    assert (told["version"], told["record"]["job_id"]) == (model.address, "a-3")
    assert [(each["version"], each["reader"], each["name"]) for each in told["ancestors"]] == [
        (features.address, model.address, "features"),
        (elsewhere.address, features.address, "rows"),
    ]
    assert [each["image"] for each in told["ancestors"]] == ["etl", ""]
    assert json.loads(json.dumps(told)) == told
