#include "sluice/roles/role_reason.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sluice/roles/classifier.hpp"
#include "sluice/roles/gangs.hpp"

namespace sluice::roles::role_reason_test {
namespace {

using testing::ContainsRegex;

constexpr process_identity who{4242, 9};

process_traits with(std::map<std::string, std::string, std::less<>> variables, uid_t user = 1000) {
  process_traits of{.who = who};
  of.as = credentials{user, {user}};
  of.variables = std::move(variables);
  return of;
}
classification_rules granting(uid_t user = 1000) {
  classification_rules rules;
  rules.may_claim_online = rules.may_claim_offline = {.users = {user}};
  return rules;
}
std::string text(const classification_rules& rules, const process_traits& of) {
  return to_text(classifier{rules}.reason_of(of, {}, true));
}

TEST(RoleReason, NamesTheRuleThatDecided) {
  auto rules = granting();
  EXPECT_EQ(text(rules, with({{"AMD_QUEUE_TAG", "ONLINE_AI"}})),
            "online by AMD_QUEUE_TAG=ONLINE_AI");
  EXPECT_EQ(text(rules, with({{"AMD_QUEUE_PRIORITY", "3"}})), "offline by AMD_QUEUE_PRIORITY=3");
  rules.by_environment = {{"QOS", "preempt*", role::offline}};
  EXPECT_EQ(text(rules, with({{"QOS", "preempt-1"}})),
            "offline by [roles] environment, QOS=preempt*");
  rules.by_cgroup = {{"/batch", role::offline}, {"/not", role::unmatched}};
  auto inside = with({});
  inside.cgroups = {"/batch/job1"};
  EXPECT_EQ(text(rules, inside), "offline by [roles] cgroups, /batch");
  inside.cgroups = {"/not"};
  EXPECT_EQ(text(rules, inside), "unmatched by [roles] cgroups, /not");
  rules.by_process = {{who, role::online}};
  EXPECT_EQ(text(rules, inside), "online by its client or the scheduler's program");
  rules.never_touch = {who};
  EXPECT_EQ(text(rules, inside), "excluded by the scheduler's program (never_touch)");

  classifier stored{granting()};
  stored.set_stored({.by_process = {{who, role::offline}}});
  EXPECT_EQ(to_text(stored.reason_of(with({{"AMD_QUEUE_TAG", "ONLINE_AI"}}), {}, true)),
            "offline by 'sluice role set'");
}

TEST(RoleReason, NamesQueuesThatDecided) {
  auto rules = granting();
  rules.by_ring = {{0x1000, 0x1fff, role::offline}};
  const queue_traits queue{.ring_base = 0x1800};
  const classifier by{rules};
  EXPECT_EQ(to_text(by.reason_of(with({}), {&queue, 1}, true)),
            "offline by [roles] rings, 0x1000 to 0x1fff");
  EXPECT_EQ(by.reason_of(with({}), {&queue, 1}, false).rule, role_rule::none)
      << "another of its queues may be online";
}

TEST(RoleReason, TellsOfAClaimThatDoesNotCount) {
  EXPECT_EQ(text(granting(7), with({{"AMD_QUEUE_TAG", "OFFLINE_AI"}})),
            "no rule and no client assigns a role to it (AMD_QUEUE_TAG=OFFLINE_AI is ignored: "
            "may_claim_offline in [roles] does not include this process)");
  EXPECT_EQ(
      text(granting(), with({{"AMD_QUEUE_TAG", "offline\x1b"}})),
      "no rule and no client assigns a role to it (AMD_QUEUE_TAG is ignored: expected ONLINE_AI or "
      "OFFLINE_AI)");
  EXPECT_EQ(text(granting(), with({})), "no rule and no client assigns a role to it");
}

TEST(RoleReason, TellsUntilWhenOneIsReleased) {
  classifier by{granting()};
  by.set_stored({.released = {{who, boot_time_now() + std::chrono::seconds(90)}}});
  const role_reason why = by.reason_of(with({{"AMD_QUEUE_TAG", "OFFLINE_AI"}}), {}, true);
  EXPECT_EQ(why.is, role::unmatched);
  EXPECT_EQ(why.says, role::offline);
  EXPECT_EQ(why.bar, role_bar::released);
  EXPECT_THAT(to_text(why), ContainsRegex("^offline by AMD_QUEUE_TAG=OFFLINE_AI, but released "
                                          "by 'sluice release' until [0-9:]{8}$"));
}

TEST(RoleReason, CountsTheRanksOfAGangThatIsNotComplete) {
  const auto rank = [](const char* number) {
    return with({{"AMD_QUEUE_TAG", "OFFLINE_AI"},
                 {"RANK", number},
                 {"WORLD_SIZE", "3"},
                 {"MASTER_ADDR", "x"}});
  };
  const classifier by{granting()};
  gang_book gangs{false};
  const auto settled = [&](const process_traits& of) {
    role_reason why = by.reason_of(of, {}, true);
    const auto is = gangs.settle(gang_of({}, of), why);
    EXPECT_EQ(is.what, why.is);
    return to_text(why);
  };
  gangs.begin();
  for (const char* each : {"0", "2"}) gangs.see(gang_of({}, rank(each)));
  EXPECT_EQ(
      settled(rank("0")),
      "offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang is not complete on this node (2 of 3 "
      "ranks)");
  gangs.see(gang_of({}, rank("1")));
  EXPECT_EQ(settled(rank("0")), "offline by AMD_QUEUE_TAG=OFFLINE_AI");

  const auto job =
      with({{"AMD_QUEUE_TAG", "OFFLINE_AI"}, {"SLURM_JOB_ID", "77"}, {"SLURM_NNODES", "2"}});
  gangs.see(gang_of({}, job));
  EXPECT_EQ(
      settled(job),
      "offline by AMD_QUEUE_TAG=OFFLINE_AI, but its gang spans several nodes (SLURM_NNODES or "
      "SLURM_JOB_NUM_NODES)");
}

}  // namespace
}  // namespace sluice::roles::role_reason_test
