// The `host-usr` image: an allow-list view of this machine, so that python3,
// bash and the like work with nothing to download.
//
// Of the host there is /usr (without what is mounted beneath it), the links of
// merged /usr, ld.so.cache, /etc/ssl/certs and /etc/alternatives, all read-only.
// Everything else of /etc is written here: a passwd and group of four, hosts and
// nsswitch.conf. /home, /root and the host's /var and /run do not exist in it.
#pragma once
#include <kj/memory.h>

#include <string>

#include "runtimes/skeleton.h"

namespace cordon::runtimes {

// Fills and seals an empty skeleton. `agent`: O_PATH fd of vm-agent. `own`: /usr
// shows its owners inside (ImageMount::own). Throws (kj).
void buildHostUsr(Skeleton& skeleton, int agent, bool own = false);

}  // namespace cordon::runtimes
