#include "sluice/nvidia/driver_text.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace sluice::nvidia::driver_text_test {
namespace {

TEST(DriverText, ReadsTheReleaseOfTheDriver) {
  const auto open = parse_version(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
      "(nixbld@)  \nGCC version:  gcc version 15.3.0 (GCC) \n");
  ASSERT_TRUE(open);
  EXPECT_EQ(open->version, "580.159.04");
  EXPECT_EQ(open->branch, 580U);
  EXPECT_TRUE(open->open_modules);
  EXPECT_TRUE(is_tested(*open));

  const auto closed = parse_version(
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n");
  ASSERT_TRUE(closed);
  EXPECT_EQ(closed->branch, 535U);
  EXPECT_FALSE(closed->open_modules);
  EXPECT_FALSE(is_tested(*closed));

  for (const auto* text :
       {"", "NVRM version:", "NVRM version: NVIDIA UNIX", "580.159.04", "NVRM version: 580",
        "NVRM version: .5 5.", "NVRM version: 99999999999.1", "GCC version: gcc version 15.3.0"})
    EXPECT_FALSE(parse_version(text)) << text;
}

TEST(DriverText, NumbersGpusAsTheDriverDoes) {
  EXPECT_EQ(gpu_at("0000:00:06.0"), gpu_id{6});
  EXPECT_EQ(gpu_at("0000:1b:00.0"), gpu_id{0x1b00});
  EXPECT_EQ(gpu_at("00000000:1B:00.0"), gpu_id{0x1b00});  // as NVML writes it
  EXPECT_EQ(gpu_at("0002:c1:1f.7"), gpu_id{0x2c11f});
  for (const auto* text : {"", "0000", "0000:00:00.0", "0000:1b:00", "0000:1b:00.8", "0000:1b:20.0",
                           "10000:1b:00.0", "0000:100:00.0", "0000:1b:00.0 ", "x000:1b:00.0"})
    EXPECT_FALSE(gpu_at(text)) << text;
}

TEST(DriverText, ReadsGpus) {
  const auto gpu = parse_gpu("0000:1b:00.0",
                             "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t "
                             "GPU-e1ab5bcb-c59c-78b5-3657-c6ba60412fca\nDevice Minor: \t 3\n");
  ASSERT_TRUE(gpu);
  EXPECT_EQ(gpu->model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpu->uuid, "GPU-e1ab5bcb-c59c-78b5-3657-c6ba60412fca");
  EXPECT_EQ(gpu->minor, 3U);
  EXPECT_FALSE(parse_gpu("a directory", "Model: X\n"));
  EXPECT_EQ(parse_gpu("0000:1b:00.0", "Models: X\nModel")->model, "");
}

TEST(DriverText, SortsGpusByTheirNodes) {
  const std::string proc = testing::TempDir() + "nvidia_proc";
  std::filesystem::remove_all(proc);
  const auto add = [&](const std::string& pci, int minor) {
    std::filesystem::create_directories(proc + "/gpus/" + pci);
    std::ofstream{proc + "/gpus/" + pci + "/information"} << "Device Minor: \t " << minor << '\n';
  };
  EXPECT_FALSE(read_gpus({.proc = proc}));
  add("0000:01:00.0", 1);
  add("0000:02:00.0", 0);
  const auto gpus = read_gpus({.proc = proc});
  ASSERT_TRUE(gpus && gpus->size() == 2);
  EXPECT_EQ(gpus->front().pci, "0000:02:00.0");
  const auto none = read_release({.proc = proc});
  EXPECT_EQ(none.error(), (error_code{ENOENT, boost::system::system_category()}));
  std::ofstream{proc + "/version"} << "something else\n";
  EXPECT_EQ(read_release({.proc = proc}).error(), errc::not_supported);
}

}  // namespace
}  // namespace sluice::nvidia::driver_text_test
