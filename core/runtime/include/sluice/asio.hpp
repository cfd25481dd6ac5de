#pragma once
/// \file
/// Runs a scheduler on the program's own io_context. One of the two headers that include Asio
/// (acquire.hpp is the other); link sluice::runtime or sluice::runtime_epoll for its macros.

#include <memory>

#include <boost/asio/io_context.hpp>

#include "sluice/reactor.hpp"

#pragma GCC visibility push(default)
namespace sluice {

/// A reactor on the host's loop. Its handlers run on a strand: one at a time, however many threads
/// run the context, and none of them waits for another.
///
/// Lifetime: `context` outlives the reactor. While the scheduler runs, the context has work, so
///           its run() does not return by itself; once it has stopped, it has none.
/// Errors:   the kernel's refusal of io_uring, as reactor::create().
[[nodiscard]] result<std::unique_ptr<reactor>> make_reactor(boost::asio::io_context& context);

}  // namespace sluice
#pragma GCC visibility pop
