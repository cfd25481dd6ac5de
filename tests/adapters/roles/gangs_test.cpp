#include "sluice/roles/gangs.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace sluice::roles::gangs_test {
namespace {

process_traits with(std::map<std::string, std::string, std::less<>> variables,
                    std::vector<std::string> cgroups = {}, uid_t user = 1000) {
  process_traits traits;
  traits.as = credentials{user, {user}};
  traits.variables = std::move(variables);
  traits.cgroups = std::move(cgroups);
  traits.network = 1;
  return traits;
}
process_traits rank(int number, int size, const std::string& address = "node1") {
  return with({{"RANK", std::to_string(number)},
               {"WORLD_SIZE", std::to_string(size)},
               {"MASTER_ADDR", address},
               {"MASTER_PORT", "29500"}});
}
std::string name(const process_traits& of, const gang_rules& rules = {}) {
  return gang_of(rules, of).name;
}

TEST(GangOf, JoinsRanksOfOneAddressPortSizeAndUser) {
  EXPECT_EQ(name(rank(0, 2)), name(rank(1, 2)));
  EXPECT_NE(name(rank(0, 2)), name(rank(0, 3)));
  EXPECT_NE(name(rank(0, 2)), name(rank(0, 2, "node2")));
  process_traits other_port = rank(0, 2);
  other_port.variables["MASTER_PORT"] = "29501";
  EXPECT_NE(name(rank(0, 2)), name(other_port));
  // Or anybody could keep others' work from being touched by joining it.
  process_traits other_user = rank(0, 2);
  other_user.as->user = 1001;
  EXPECT_NE(name(rank(0, 2)), name(other_user));
}

// Two containers, each with a server of its own on 127.0.0.1:29500.
TEST(GangOf, DividesLoopbackAddressesByNetwork) {
  for (const char* address : {"localhost", "127.0.0.1", "::1"}) {
    process_traits elsewhere = rank(1, 2, address);
    elsewhere.network = 2;
    EXPECT_NE(name(rank(0, 2, address)), name(elsewhere));
  }
  process_traits elsewhere = rank(1, 2);
  elsewhere.network = 2;
  EXPECT_EQ(name(rank(0, 2)), name(elsewhere));
}

TEST(GangOf, TakesNoRanksThatAreIncomplete) {
  EXPECT_EQ(name(rank(0, 1)), "");
  EXPECT_EQ(name(rank(2, 2)), "");
  EXPECT_EQ(name(rank(0, 2, "")), "");
  EXPECT_EQ(name(with({{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})), "");
  EXPECT_EQ(name(with({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})), "");
  gang_rules none;
  none.ranks = false;
  EXPECT_EQ(name(rank(0, 2), none), "");
}

TEST(GangOf, JoinsAJobAndSaysThatItHasMoreNodes) {
  EXPECT_EQ(name(with({{"SLURM_JOB_ID", "7"}})), name(with({{"SLURM_JOB_ID", "7"}})));
  EXPECT_NE(name(with({{"SLURM_JOB_ID", "7"}})), name(with({{"SLURM_JOB_ID", "8"}})));
  EXPECT_NE(name(with({{"SLURM_JOB_ID", "7"}})), name(with({{"SLURM_JOB_ID", "7"}}, {}, 1)));
  const auto far = [](std::map<std::string, std::string, std::less<>> more) {
    more["SLURM_JOB_ID"] = "7";
    return gang_of({}, with(more)).far;
  };
  EXPECT_FALSE(far({}));
  EXPECT_FALSE(far({{"SLURM_NNODES", "1"}}));
  EXPECT_TRUE(far({{"SLURM_NNODES", "2"}}));
  EXPECT_TRUE(far({{"SLURM_JOB_NUM_NODES", "3"}}));
  EXPECT_FALSE(far({{"SLURM_NNODES", "1"}, {"SLURM_JOB_NUM_NODES", "3"}}));
}

TEST(GangOf, JoinsThePodsOfBothCgroupDrivers) {
  const std::string plain = "/kubepods/besteffort/pod1234-56";
  const std::string slices =
      "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice";
  const std::string guaranteed = "/kubepods.slice/kubepods-pod12_34.slice";
  const std::string kind = "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod12.slice";
  for (const std::string& pod : {plain, slices, guaranteed, kind}) {
    EXPECT_NE(name(with({}, {pod + "/a"})), "") << pod;
    EXPECT_EQ(name(with({}, {pod + "/a"})), name(with({}, {"/x", pod + "/b/c"}, 5))) << pod;
    EXPECT_NE(name(with({}, {pod + "/a"})), name(with({}, {pod + "9/a"}))) << pod;
  }
  for (const char* other : {"/", "/podman/a", "/user.slice/my-pod/a", "/kubepods/besteffort"})
    EXPECT_EQ(name(with({}, {other})), "") << other;
}

TEST(GangOf, PrefersConfigurationThenRanksThenJobThenPod) {
  process_traits all = rank(0, 2);
  all.variables["SLURM_JOB_ID"] = "7";
  all.variables["GANG"] = "g";
  all.cgroups = {"/jobs/job_1/step_0", "/kubepods/pod1/c"};
  gang_rules rules{.variables = {"OTHER", "GANG"}, .cgroups = {"/jobs/job_*"}};
  EXPECT_EQ(name(all, rules), name(with({{"GANG", "g"}}), rules));
  rules.variables.clear();
  EXPECT_EQ(name(all, rules), name(with({}, {"/jobs/job_1"}), rules));
  EXPECT_NE(name(all, rules), name(with({}, {"/jobs/job_2"}), rules));
  rules.cgroups.clear();
  EXPECT_EQ(name(all, rules), name(rank(1, 2)));
  rules.ranks = false;
  EXPECT_EQ(name(all, rules), name(with({{"SLURM_JOB_ID", "7"}})));
  rules.slurm = false;
  EXPECT_EQ(name(all, rules), name(with({}, {"/kubepods/pod1"})));
  rules.pods = false;
  EXPECT_EQ(name(all, rules), "");
}

/// One look at these, all offline by themselves.
std::vector<gang_book::settled> settle(gang_book& book, const std::vector<process_traits>& all,
                                       const std::vector<role>& roles) {
  std::vector<gang_book::settled> settled;
  book.begin();
  for (const process_traits& each : all) book.see(gang_of({}, each));
  for (std::size_t index = 0; index < all.size(); ++index)
    settled.push_back(book.settle(gang_of({}, all[index]), roles[index]));
  return settled;
}

TEST(GangBook, LeavesAGangUntouchedUntilItsLastRankIsHere) {
  gang_book book{false};
  const auto before = settle(book, {rank(0, 3), rank(1, 3)}, {role::offline, role::offline});
  EXPECT_EQ(before[0].what, role::unmatched);
  EXPECT_NE(before[0].key, 0U);
  // A rank that is there twice is not the one that is missing.
  EXPECT_EQ(
      settle(book, {rank(0, 3), rank(1, 3), rank(1, 3)}, std::vector(3, role::offline))[0].what,
      role::unmatched);
  const auto after =
      settle(book, {rank(0, 3), rank(1, 3), rank(2, 3)}, std::vector(3, role::offline));
  for (const auto& each : after)
    EXPECT_EQ(each, (gang_book::settled{role::offline, before[0].key}));
  EXPECT_EQ(settle(book, {rank(0, 3), rank(2, 3)}, std::vector(2, role::offline))[1].what,
            role::unmatched);
}

TEST(GangBook, TakesAPartialGangWhereThatIsAllowed) {
  gang_book book{true};
  EXPECT_EQ(settle(book, {rank(0, 3)}, {role::offline})[0].what, role::offline);
  EXPECT_EQ(
      settle(book, {with({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}})}, {role::offline})[0].what,
      role::offline);
}

TEST(GangBook, KeepsOnlineMembersOnlineHoweverFarTheGangReaches) {
  gang_book book{false};
  EXPECT_EQ(settle(book, {rank(0, 3)}, {role::online})[0].what, role::online);
}

// One member that knows is enough: its peers' environments may have been cleaned.
TEST(GangBook, BelievesTheMemberThatKnowsOfMoreNodes) {
  gang_book book{false};
  const auto settled = settle(
      book, {with({{"SLURM_JOB_ID", "7"}}), with({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "2"}})},
      {role::offline, role::offline});
  EXPECT_EQ(settled[0].what, role::unmatched);
}

TEST(GangBook, DividesAJobByRolesAndRanksNot) {
  gang_book book{false};
  const process_traits job = with({{"SLURM_JOB_ID", "7"}});
  const auto parts =
      settle(book, {job, job, job, job, job},
             {role::online, role::offline, role::offline, role::unmatched, role::online});
  EXPECT_EQ(parts[0].key, parts[4].key);
  EXPECT_EQ(parts[1].key, parts[2].key);
  EXPECT_NE(parts[0].key, parts[1].key);
  EXPECT_EQ(parts[3].key, 0U);
  const auto whole = settle(book, {rank(0, 2), rank(1, 2)}, {role::offline, role::unmatched});
  EXPECT_EQ(whole[0].key, whole[1].key);
  EXPECT_NE(whole[0].key, 0U);
}

TEST(GangBook, GivesNoKeyTwice) {
  gang_book book{false};
  const auto first = settle(book, {with({{"SLURM_JOB_ID", "7"}})}, {role::offline});
  EXPECT_EQ(settle(book, {with({{"SLURM_JOB_ID", "7"}})}, {role::offline}), first);
  settle(book, {}, {});
  settle(book, {}, {});
  EXPECT_NE(settle(book, {with({{"SLURM_JOB_ID", "7"}})}, {role::offline}), first);
}

// Slurm's jobs of several nodes, which the nodes hold together.
TEST(GangAcrossNodes, IsAJobOfSlurmWithTheSameKeyOnAllNodes) {
  const gang_rules across{.across_nodes = gang_engine::slurm};
  const auto job = [&](std::map<std::string, std::string, std::less<>> more, uid_t user = 1000) {
    more.insert({"SLURM_JOB_ID", "7"});
    return gang_of(across, with(more, {}, user));
  };
  const gang_membership found = job({{"SLURM_JOB_NUM_NODES", "3"}});
  EXPECT_EQ(found.nodes, 3U);
  EXPECT_FALSE(found.far);
  EXPECT_EQ(slurm_job::of(found.key_across).user, 1000U);
  EXPECT_EQ(slurm_job::of(found.key_across).number, 7U);
  // Ranks that the job numbers by itself belong to it.
  EXPECT_EQ(
      job({{"SLURM_NNODES", "3"}, {"RANK", "0"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "a"}}).nodes,
      3U);
  EXPECT_NE(job({{"SLURM_NNODES", "3"}}, 1001).key_across, found.key_across);
  // What is on one node, and what may wait for jobs of other numbers.
  EXPECT_EQ(job({{"SLURM_NNODES", "1"}}).nodes, 0U);
  EXPECT_TRUE(job({{"SLURM_NNODES", "3"}, {"SLURM_HET_SIZE", "2"}}).far);
  EXPECT_TRUE(job({{"SLURM_NNODES", "1"}, {"SLURM_HET_SIZE", "2"}}).far);
  EXPECT_EQ(job({{"SLURM_NNODES", "5000000000"}}).nodes, 0U);
  EXPECT_TRUE(gang_of({}, with({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "3"}})).far);
  EXPECT_TRUE(gang_of({}, with({{"SLURM_JOB_ID", "7"}, {"SLURM_HET_SIZE", "2"}})).far);
  EXPECT_FALSE(gang_of({}, with({{"SLURM_JOB_ID", "7"}, {"SLURM_HET_SIZE", "1"}})).far);
}

TEST(GangAcrossNodes, StaysOffline) {
  const gang_rules across{.across_nodes = gang_engine::slurm};
  const gang_membership member =
      gang_of(across, with({{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "3"}}));
  gang_book book{false};
  book.begin();
  book.see(member);
  const gang_book::settled offline = book.settle(member, role::offline);
  EXPECT_EQ(offline, (gang_book::settled{role::offline, member.key_across, 3}));
  // A server of the same job is none of it.
  const gang_book::settled online = book.settle(member, role::online);
  EXPECT_NE(online.key, offline.key);
  EXPECT_EQ(online.nodes, 0U);
}

}  // namespace
}  // namespace sluice::roles::gangs_test
