// sluice-agent: the process that acts, with the drivers that it knows.

#include "sluice/agent/acting_driver.hpp"
#include "sluice/kfd/acting_driver.hpp"

int main(int argc, char** argv) {
  sluice::agent::acting_drivers drivers;
  drivers.push_back(sluice::kfd::make_acting_driver());
  return sluice::agent::run_agent(argc, argv, drivers);
}
