// System calls that may take long (fsync, unlink of a large file, the last close of
// a mount): on a thread of their own, so that the loop goes on.
#pragma once
#include <kj/async.h>
#include <kj/function.h>

namespace cordon::broker {

// Resolves on the caller's loop when `work` has returned. `work` makes system calls
// on what it owns, touches nothing of the loop's, and throws nothing; it goes on
// when the promise is dropped.
kj::Promise<void> offLoop(kj::Function<void()> work);

}  // namespace cordon::broker
