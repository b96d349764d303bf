"""What ``python WORKER …`` runs; copied to the root of the worker's folder or zipapp."""

if __name__ == "__main__":  # a rank's multiprocessing children import this file again
    import gc
    import sys

    gc.disable()  # 3 ms of the start; a rank's fork enables it again

    from muster.worker.replica import main

    sys.exit(main(sys.argv[1:]))
