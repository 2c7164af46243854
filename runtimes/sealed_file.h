// Bytes that nobody can change any more, as a descriptor.
#pragma once
#include <kj/io.h>
#include <sys/types.h>

#include <string>

namespace cordon::runtimes {

// A sealed memfd. With an x in `mode` it can be executed (MFD_EXEC where the
// kernel knows it). Throws (kj).
kj::AutoCloseFd sealedFile(const char* name, kj::ArrayPtr<const kj::byte> bytes, mode_t mode);

// Of a program's file as it is now, 0111: nobody inside a sandbox can read it, and
// it can't be dumped from its first instruction. Throws (kj).
kj::AutoCloseFd sealedProgram(const char* name, const std::string& path);

}  // namespace cordon::runtimes
