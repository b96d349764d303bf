"""A script for Ray as its documentation has them: tasks and an actor, a dataset, a training. It names no cluster."""

import sys
import time

import ray
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ray.init()


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


@ray.remote
def square(x, counter):
    time.sleep(0.1)
    ray.get(counter.add.remote())
    return x * x, ray.get_runtime_context().get_node_id()


counter = Counter.remote()
squares = ray.get([square.remote(i, counter) for i in range(30)])
nodes = {node for _, node in squares}
print("sum", sum(x for x, _ in squares), "counted", ray.get(counter.add.remote()) - 1)
print("the driver's node works:", ray.get_runtime_context().get_node_id() in nodes)

rows = ray.data.range(1000).map_batches(lambda batch: {"id": batch["id"], "twice": batch["id"] * 2})
rows.write_parquet(sys.argv[1] + "/rows")


def fit(config):
    shard = train.get_dataset_shard("train")
    seen = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=100))
    train.report({"seen": seen})
    if train.get_context().get_world_rank() == 0:
        print("trained by", train.get_context().get_world_size(), "workers")


trainer = DataParallelTrainer(
    fit,
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    run_config=RunConfig(storage_path=sys.argv[1] + "/runs"),
    datasets={"train": rows},
)
result = trainer.fit()
print("the training ended", "well" if result.error is None else result.error)
