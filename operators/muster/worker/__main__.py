"""What ``python WORKER …`` runs; copied to the root of the worker's folder or zipapp."""

if __name__ == "__main__":  # a rank's multiprocessing children import this file again
    import gc
    import os
    import signal
    import sys

    if os.getpid() == 1:  # the kernel ignores signals to a container's first process that it does not handle
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})  # see muster.worker.pod
    gc.disable()  # saves 3 ms at the start; a rank's fork enables it again

    from muster.worker.replica import main

    sys.exit(main(sys.argv[1:]))
