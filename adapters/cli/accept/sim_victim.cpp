// sluice-sim-victim: the victim of `sluice accept` on the simulated device.

#include "sim_work.hpp"

int main(int argc, char** argv) {
  const unsigned queues = sluice::accept::queues_of(argc, argv);
  sluice::accept::sim_work work{queues};
  return sluice::accept::victim{work, queues}.obey();
}
