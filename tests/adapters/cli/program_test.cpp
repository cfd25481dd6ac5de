// The command as users run it, beside a simulated device and real processes.

#include "command.hpp"
#include "offline_target.hpp"
#include "simulated_device.hpp"

#include <boost/json.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* program = SLUICE_PROGRAM;

struct finished {
  int code;
  std::string out;
  std::string err;
};

finished run(const simulated_device& device, std::vector<std::string> words) {
  command made{program, std::move(words), device.environment()};
  const auto code = made.ends();
  return {code.value_or(-1), made.out(), made.err()};
}

TEST(SluiceQueues, ListsAProcessWithItsQueues) {
  const simulated_device device;
  const offline_target target{device.roots(), {.queues = 2}};
  ASSERT_TRUE(target.says('r'));
  const auto pid = std::to_string(target.pid());
  const auto shown = run(device, {"queues"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("GPU 0: gpu_id 51110, 0000:01:00.0"));
  EXPECT_THAT(shown.out, ContainsRegex(pid + " +root +[a-z_]+ +0 +0 +compute "));
  EXPECT_THAT(shown.out, ContainsRegex(pid + " +root +[a-z_]+ +0 +1 +compute "));

  const auto json = run(device, {"queues", "--json", "--pid", pid, "--interval", "0s"});
  ASSERT_EQ(json.code, 0) << json.err;
  const auto value = boost::json::parse(json.out);
  ASSERT_EQ(value.at("processes").as_array().size(), 1U);
  EXPECT_EQ(value.at("processes").at(0).at("pid").to_number<pid_t>(), target.pid());
  EXPECT_EQ(value.at("processes").at(0).at("queues").as_array().size(), 2U);
  EXPECT_EQ(value.at("processes").at(0).at("queues").at(1).at("gpu_id").to_number<int>(), 51110);
}

TEST(SluiceQueues, SaysWhatIsNotThere) {
  const simulated_device device;
  const auto wrong = run(device, {"queues", "--gpu", "17"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err, "sluice: --gpu 17: no such GPU; 'sluice queues' lists them\n");

  command nowhere{program, {"queues"}, {"SLUICE_KFD_SYSFS=/nonexistent/kfd"}};
  EXPECT_EQ(nowhere.ends(), 1);
  EXPECT_THAT(nowhere.err(), HasSubstr("cannot read /nonexistent/kfd/proc: No such file"));
}

TEST(Sluice, ExplainsItself) {
  for (const std::string subcommand : {"", "queues"}) {
    std::vector<std::string> words;
    if (!subcommand.empty()) words.push_back(subcommand);
    words.push_back("--help");
    command help{program, words, {}};
    EXPECT_EQ(help.ends(), 0);
    const auto text = help.out();
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24) << text;
    for (std::size_t at = 0; at < text.size();) {
      const auto end = text.find('\n', at);
      EXPECT_LE(end - at, 80U) << text.substr(at, end - at);
      at = end + 1;
    }
    words.back() = "--no-such-option";
    command wrong{program, words, {}};
    EXPECT_EQ(wrong.ends(), 2);
    EXPECT_THAT(wrong.err(), ContainsRegex("^sluice: [^\n]+\n$"));
  }
}

}  // namespace
}  // namespace sluice::test
