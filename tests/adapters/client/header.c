/* Compiles. */
#include "sluice/client.h"
#include "sluice/client_words.h"
#include "sluice/plugin.h"

int sluice_test_header(sluice_connection* client);
int sluice_test_header(sluice_connection* client) {
  sluice_client_status seen = {.size = sizeof seen};
  return sluice_client_get_status(client, &seen);
}
