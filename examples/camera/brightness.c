/* A viewer in C: reads each picture in place and prints the mean brightness of all of them.
 *
 *     cc brightness.c -o brightness $(pkg-config --cflags --libs tensorlend)
 */
#include <inttypes.h>
#include <stdio.h>
#include <tensorlend.h>

int main(void) {
    const int64_t a_minute = INT64_C(60000000000);
    tensorlend_client *client = NULL;
    tensorlend_subscription *camera = NULL;
    tensorlend_lease *message = NULL;
    uint64_t pictures = 0, bytes = 0, sum = 0;

    if (tensorlend_connect(NULL, &client) != TENSORLEND_OK ||
        tensorlend_subscribe(client, "camera/front", TENSORLEND_START_OLDEST, 0, a_minute, &camera) != TENSORLEND_OK) {
        fprintf(stderr, "%s\n", tensorlend_error_message());
        tensorlend_client_free(client);
        return 1;
    }
    while (tensorlend_subscription_recv(camera, a_minute, &message, NULL) == TENSORLEND_OK) {
        const tensorlend_tensor *picture = tensorlend_lease_tensor(message);
        const uint8_t *pixels = picture->data;
        for (uint64_t i = 0; i < picture->nbytes; i++)
            sum += pixels[i];
        bytes += picture->nbytes;
        pictures++;
        tensorlend_lease_free(message);
    }
    printf("brightness: %" PRIu64 " pictures, mean %.2f\n", pictures, bytes ? (double)sum / (double)bytes : 0.0);
    tensorlend_subscription_close(camera);
    tensorlend_client_free(client);
    return pictures == 0;
}
