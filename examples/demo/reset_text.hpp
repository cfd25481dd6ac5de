#pragma once
/// \file
/// What a program says when the GPU that it works on was reset.

namespace demo {

/// What errc::lost of a wait for kernels means.
inline constexpr const char* reset_text =
    "a GPU of this process was reset: its queues and their work are lost (see dmesg); restart the "
    "program";

}  // namespace demo
