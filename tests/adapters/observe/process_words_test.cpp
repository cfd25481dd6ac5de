#include "sluice/observe/process_words.hpp"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace sluice::observe::process_words_test {
namespace {

TEST(ProcessWords, KnowJobsByTheirCgroups) {
  EXPECT_EQ(job_of_cgroups("0::/system.slice/slurmstepd.scope/job_4242/step_0/user/task_0\n"),
            "slurm:4242");
  EXPECT_EQ(job_of_cgroups("4:memory:/slurm/uid_1000/job_17/step_batch\n0::/\n"), "slurm:17");
  EXPECT_EQ(job_of_cgroups("0::/kubepods.slice/kubepods-besteffort.slice/"
                           "kubepods-besteffort-pod1f3a_22.slice/cri-containerd-aa.scope\n"),
            "pod:1f3a-22");
  EXPECT_EQ(job_of_cgroups("0::/kubepods/burstable/pod0aa1-2b\n"), "pod:0aa1-2b");
  EXPECT_EQ(job_of_cgroups("0::/user.slice/user-1000.slice/session-2.scope\n"), "");
  EXPECT_EQ(job_of_cgroups("0::/podman/job_3\n"), "");
  EXPECT_EQ(job_of_cgroups(""), "");
}

TEST(ProcessWords, AreThoseOfTheProcessThatIsMeant) {
  std::ostringstream own;
  own << std::ifstream{"/proc/self/stat"}.rdbuf();
  std::string rest = own.str().substr(own.str().rfind(')') + 2);
  std::istringstream fields{rest};
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  const auto start = std::stoull(field);
  const process_words mine = read_process(::getpid(), start);
  EXPECT_EQ(mine.command, "observe_unit_te");  // the kernel keeps 15 letters
  EXPECT_FALSE(mine.user.empty());
  EXPECT_EQ(read_process(::getpid(), start + 1).command, "?");
}

TEST(ProcessWords, AreReadOnceForSeveralReaders) {
  int reads = 0;
  const auto read = reads_once([&](pid_t, std::uint64_t) {
    ++reads;
    return process_words{.command = "a"};
  });
  const auto another = read;
  EXPECT_EQ(read(1, 2).command, "a");
  EXPECT_EQ(another(1, 2).command, "a");
  EXPECT_EQ(reads, 1);
  (void)read(1, 3);
  EXPECT_EQ(reads, 2);
}

}  // namespace
}  // namespace sluice::observe::process_words_test
