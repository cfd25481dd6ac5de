#include "protocol.hpp"

#include "launch.hpp"
#include "open_descriptors.hpp"
#include "send_with.hpp"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <string>

#include <gtest/gtest.h>

namespace sluice::agent::protocol_test {
namespace {

shared_page* map_shared() {
  void* const memory = ::mmap(nullptr, sizeof(shared_page), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : new (memory) shared_page;
}

// More than fit at once, so that both sides wrap around and meet a full and an empty ring.
TEST(Protocol, CarriesEveryReportBetweenProcessesInOrder) {
  shared_page* const page = map_shared();
  ASSERT_NE(page, nullptr);
  constexpr std::uint64_t total = 5000;
  const pid_t child = ::fork();
  if (child == 0) {
    report_writer reports{page->reports};
    report each;
    each.kind = report_kind::completed;
    for (std::uint64_t id = 1; id <= total; ++id) {
      each.result.id = id;
      each.result.count = max_batch_queues;
      each.result.queues[max_batch_queues - 1] = driver_queue_id{static_cast<std::uint32_t>(id)};
      while (reports.push(each) != ring_status::done) ::usleep(100);
    }
    ::_exit(0);
  }
  report_reader reports{page->reports};
  report each;
  for (std::uint64_t id = 1; id <= total; ++id) {
    while (reports.pop(each) != ring_status::done) ::usleep(100);
    ASSERT_EQ(each.result.id, id);
    ASSERT_EQ(each.result.queues[max_batch_queues - 1],
              driver_queue_id{static_cast<std::uint32_t>(id)});
  }
  EXPECT_EQ(reports.pop(each), ring_status::would_wait);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::munmap(page, sizeof(shared_page));
}

TEST(Protocol, CarriesErrorsOfBothCategories) {
  for (const error_code& error : {error_code{}, error_code{errc::already_owned},
                                  error_code{EPERM, boost::system::system_category()}}) {
    const plain_error plain{error};
    EXPECT_EQ(error_code{plain}, error) << error.message();
  }
}

TEST(Protocol, CutsALongTextAndKeepsItsEnd) {
  note what;
  what.set_text(std::string(1000, 'x'));
  EXPECT_EQ(what.get_text(), std::string(what.text.size() - 1, 'x'));
  what.set_text("short");
  EXPECT_EQ(what.get_text(), "short");
}

// Symptom: a note with two descriptors left one open in the host.
TEST(Protocol, ANoteBringsOneDescriptorAtMost) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const unique_fd host{ends[0]};
  const unique_fd agent{ends[1]};
  const std::size_t before = test::open_descriptors();
  const note said;
  ASSERT_TRUE(test::send_with(agent.get(), &said, sizeof said,
                              {STDERR_FILENO, STDERR_FILENO, STDERR_FILENO}, 0));
  // Nor does an empty one, which looks like the end.
  ASSERT_TRUE(test::send_with(agent.get(), nullptr, 0, {STDERR_FILENO}, 0));
  note heard;
  for (const bool whole : {true, false}) {
    unique_fd pidfd;
    EXPECT_EQ(receive(host.get(), heard, pidfd).has_value(), whole);
    EXPECT_TRUE(pidfd);
  }
  EXPECT_EQ(test::open_descriptors(), before);
}

}  // namespace
}  // namespace sluice::agent::protocol_test
