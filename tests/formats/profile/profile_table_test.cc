#include "formats/profile/table.h"

#include <gtest/gtest.h>

namespace pipewright {

TEST(ProfileTable, HasALineForEachNodeAndLink) {
  Profile profile;
  ProfileNode first, second;
  first.name = "module0", first.description = "embed", first.body = "lists";
  first.forward = {0.0015, 0.00025}, first.backward = {0.003, 0};
  first.input_gradient = {0.001, 0}, first.weight_gradient = {0.002, 0.0001};
  first.kept = 2048, first.kept_for_weight = 100, first.parameters = 1000, first.buffers = 24;
  first.peak = 4096;
  second.name = "module1", second.description = "head";
  profile.nodes = {first, second};
  ProfileValue input, sent, unused;
  input.consumers = {0}, input.bytes = 7;
  sent.producer = 0, sent.consumers = {1}, sent.bytes = 512;
  unused.producer = 1, unused.bytes = 64;
  profile.values = {input, sent, sent, unused};  // two values are sent; the last is the output
  profile.links = {{0, 1, 2.5e-6, 12.345e9, 0.5e9}};
  EXPECT_EQ(ProfileTable(profile),
            "node     F ms          B ms          I ms          W ms          sends  keeps  "
            "keeps for W  weights  peak   body   holds\n"
            "module0  1.500 ±0.250  3.000 ±0.000  1.000 ±0.000  2.000 ±0.100  1 KiB  2 KiB  "
            "100 B        1 KiB    4 KiB  lists  embed\n"
            "module1  0.000 ±0.000  0.000 ±0.000  0.000 ±0.000  0.000 ±0.000  0 B    0 B    "
            "0 B          0 B      0 B    -      head\n"
            "rank 0 -> 1  2.5 us  12.35 ±0.50 GB/s\n");
}

}  // namespace pipewright
