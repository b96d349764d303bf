"""What ``python WORKER …`` runs; copied to the root of the worker's folder or zipapp."""

if __name__ == "__main__":  # a rank's multiprocessing children import this file again
    import sys

    from muster.worker.replica import main

    sys.exit(main(sys.argv[1:]))
