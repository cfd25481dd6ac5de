// Settings that change while the scheduler runs.

#include "core_bench.hpp"

#include <gtest/gtest.h>

namespace sluice::tests::config_switch_test {
namespace {

TEST(ConfigSwitch, HoldsATighterLimitAtOnce) {
  core_bench bench;  // max_suspend 1 s
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.run_for(300ms);
  ASSERT_TRUE(bench.driver.suspended(100, q(0)));
  auto config = quick_config();
  config.max_suspend = 200ms;
  ASSERT_TRUE(bench.core->set_config(config));
  EXPECT_TRUE(bench.core->config() == config);
  bench.settle();
  EXPECT_FALSE(bench.driver.suspended(100, q(0))) << "off for longer than it may be by now";
  EXPECT_TRUE(bench.driver.attached(100));
}

TEST(ConfigSwitch, LetsAHoldLastByAWiderLimit) {
  core_bench bench;
  bench.create(100, role::offline, gpu_a, {0});
  auto client = bench.client();
  bench.attach_all();
  client.begin();
  bench.run_for(900ms);
  auto config = quick_config();
  config.max_suspend = 5s;
  ASSERT_TRUE(bench.core->set_config(config));
  bench.run_for(2s);
  EXPECT_TRUE(bench.driver.suspended(100, q(0)));
  EXPECT_EQ(bench.driver.batches().size(), 1U) << "it was never resumed";
}

TEST(ConfigSwitch, IsForProcessesThatComeLaterWhereAWaitHasBegun) {
  core_bench bench;  // attach_after 2 s
  bench.create(100, role::offline, gpu_a, {0});
  bench.run_for(1s);
  auto config = quick_config();
  config.attach_after = 100ms;
  ASSERT_TRUE(bench.core->set_config(config));
  bench.run_for(10ms);
  bench.create(101, role::offline, gpu_b, {1});
  bench.run_for(200ms);
  EXPECT_TRUE(bench.driver.attached(101));
  EXPECT_FALSE(bench.driver.attached(100));
}

TEST(ConfigSwitch, IsRefusedWholeWhereItCannotBe) {
  core_bench bench;
  auto config = quick_config();
  config.min_run = 0ns;
  EXPECT_EQ(bench.core->set_config(config).error(), errc::bad_config);
  config = quick_config();
  config.max_suspend = 2s;
  config.suspend_copy_queues = true;
  EXPECT_EQ(bench.core->set_config(config).error(), errc::not_supported);
  EXPECT_TRUE(bench.core->config() == quick_config());
  EXPECT_EQ(config.keep_fixed(bench.core->config()),
            "the scheduler must be restarted to change these settings; current values: "
            "suspend_copy_queues (false)");
  EXPECT_EQ(config.keep_fixed(bench.core->config()), "");
  ASSERT_TRUE(bench.core->set_config(config));
  bench.core->finish_stop();
  EXPECT_EQ(bench.core->set_config(config).error(), errc::stopped);
}

}  // namespace
}  // namespace sluice::tests::config_switch_test
