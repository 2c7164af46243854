// `output` messages built around bytes that are already in place.
//
// Program output is read from its pipe straight into the buffer that is sent:
// the message's structure is written in front of the bytes afterwards.
#pragma once
#include <kj/array.h>

#include <cstddef>
#include <cstdint>

#include "ipc/guest.capnp.h"

namespace cordon::agent {

// Offset, in an output frame, of the program's bytes.
size_t outputDataOffset();

// Buffer size for an output frame with `bytes` bytes.
size_t outputFrameBytes(size_t bytes);

// `frame` is word aligned and holds `bytes` program bytes at
// outputDataOffset(). Writes everything around them; the frame is
// outputFrameBytes(bytes) long.
void finishOutputFrame(kj::byte* frame, uint32_t exec, guest::OutputStream stream, uint64_t offset,
                       size_t bytes);

}  // namespace cordon::agent
