"""A script for Dask as its documentation has them: futures, a delayed sum and a dataframe. It names no cluster."""

import os
import sys
import time

import dask
import pandas as pd
from dask.distributed import Client, get_worker


def square(x):
    time.sleep(0.05)
    return x * x, get_worker().address


if __name__ == "__main__":
    client = Client()
    client.wait_for_workers(2)
    found = client.gather(client.map(square, range(40)))
    print("sum", sum(x for x, _ in found), "by", len({worker for _, worker in found}), "workers")

    parts = [dask.delayed(pd.DataFrame)({"x": range(i, i + 10), "odd": i % 2}) for i in range(20)]
    sizes = [dask.delayed(len)(part) for part in parts]
    print("rows", dask.delayed(sum)(sizes).compute())

    def write(part, path):
        part.to_parquet(path)

    os.makedirs(sys.argv[1] + "/rows")
    dask.compute(
        *[dask.delayed(write)(part, f"{sys.argv[1]}/rows/{i}.parquet") for i, part in enumerate(parts)]
    )
    client.close()
