// Bytes that nobody can change any more, as a descriptor.
#pragma once
#include <kj/io.h>
#include <sys/types.h>

namespace cordon::runtimes {

// A sealed memfd. With an x in `mode` it can be executed (MFD_EXEC where the
// kernel knows it). Throws (kj).
kj::AutoCloseFd sealedFile(const char* name, kj::ArrayPtr<const kj::byte> bytes, mode_t mode);

}  // namespace cordon::runtimes
