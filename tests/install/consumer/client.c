#include <sluice/client.h>

#include <stdio.h>

int main(void) {
  const sluice_client_options options = {.size = sizeof options, .socket = "/nonexistent/socket"};
  sluice_connection* client = NULL;
  if (sluice_client_open(&options, &client) != 0) {
    fprintf(stderr, "%s\n", sluice_client_last_error());
    return 1;
  }
  sluice_client_begin(client);
  sluice_client_status seen = {.size = sizeof seen};
  sluice_client_get_status(client, &seen);
  printf("in flight: %d, connected: %u\n", (int)seen.in_flight, seen.connected);
  return sluice_client_close(client) != 0 || seen.in_flight != 1;
}
