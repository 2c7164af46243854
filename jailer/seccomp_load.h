// Puts a compiled filter (seccomp.h) on this process. System calls alone.
#pragma once

namespace cordon::jailer {

// `fd`: a file of struct sock_filter, read from its beginning. Takes no_new_privs
// or CAP_SYS_ADMIN; for this thread, and those that it starts. 0, or errno:
// EMSGSIZE when the file holds no such program. Not by two threads at once.
int loadFilter(int fd);

}  // namespace cordon::jailer
