"""What has to be said before gRPC is imported; so `ledger` imports this first.

gRPC's own handlers of a fork wait for its threads, and make children hang or abort where those
are busy. They are of no use here, because no child uses its parent's connections. Who imported
gRPC before has chosen for itself, and so has who set the variable.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
