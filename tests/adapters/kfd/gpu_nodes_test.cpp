#include "gpu_nodes.hpp"

#include "sysfs.hpp"
#include "temporary_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sluice/os/unique_fd.hpp"

namespace sluice::kfd::gpu_nodes_test {
namespace {

class GpuNodes : public ::testing::Test {
 protected:
  void add_node(int node, const std::string& gpu, const std::string& render_minor) const {
    const auto folder = root_ / "topology/nodes" / std::to_string(node);
    std::filesystem::create_directories(folder);
    std::ofstream{folder / "gpu_id"} << gpu << "\n";
    std::ofstream{folder / "properties"} << "simd_count 4\ndrm_render_minor " << render_minor
                                         << "\n";
  }
  /// The driver lists the GPU for this process.
  void bind(const std::string& gpu) const {
    const auto folder = root_ / "proc" / std::to_string(::getpid());
    std::filesystem::create_directories(folder);
    std::ofstream{folder / ("vram_" + gpu)} << "0\n";
  }
  std::optional<gpu_id> missing(const std::vector<gpu_node>& nodes) const {
    return gpu_without_address_space(::getpid(), nodes, root_);
  }

  const test::temporary_directory made_;
  const std::filesystem::path root_ = made_.path();
};

TEST_F(GpuNodes, AreFoundInTheOrderOfTheTopology) {
  add_node(0, "0", "0");
  add_node(10, "51110", "128");
  add_node(2, "51367", "129");
  add_node(3, "51624", "0");
  const auto found = find_gpu_nodes(root_, root_ / "kfd");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].gpu, gpu_id{51367});
  EXPECT_EQ(found[1].gpu, gpu_id{51624});
  EXPECT_EQ(found[1].render, 0U);
  EXPECT_EQ(found[2].gpu, gpu_id{51110});
  EXPECT_NE(found[0].render, found[2].render);  // DRM's device numbers, as there are no nodes.
}

TEST_F(GpuNodes, NeedAnOpenRenderNodeOnlyWhereTheDriverListsTheGpu) {
  struct stat file {};
  ASSERT_EQ(::stat("/dev/full", &file), 0);
  const std::vector<gpu_node> nodes{{gpu_id{7}, file.st_rdev}, {gpu_id{8}, 0}};
  EXPECT_FALSE(missing(nodes));  // A device cgroup hides it.
  bind("7");
  bind("8");
  EXPECT_EQ(missing(nodes), gpu_id{7});
  EXPECT_FALSE(missing({nodes[0]})) << "a node with one GPU";
  const unique_fd open{::open("/dev/full", O_RDWR | O_CLOEXEC)};
  ASSERT_TRUE(open);
  EXPECT_FALSE(missing(nodes));
}

TEST(TopologyNode, ReadsAPropertyOfATopologyNode) {
  constexpr std::string_view text = "simd_count 1216\nhive_id 77\nhive_id_b 9\nnum_xcc 8\n";
  EXPECT_EQ(property(text, "hive_id"), 77U);
  EXPECT_EQ(property(text, "num_xcc"), 8U);
  EXPECT_FALSE(property(text, "hive"));
  EXPECT_FALSE(property(text, "unique_id"));
  EXPECT_FALSE(property("hive_id x\n", "hive_id"));
}

}  // namespace
}  // namespace sluice::kfd::gpu_nodes_test
