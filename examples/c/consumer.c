/* Waits for an image and reads it in place, in the memory that the producer wrote.
 *
 *     cc consumer.c -o consumer $(pkg-config --cflags --libs tensorlend)
 */
#include <inttypes.h>
#include <stdio.h>
#include <tensorlend.h>

int main(void) {
    const int64_t ten_seconds = INT64_C(10000000000);
    tensorlend_client *client = NULL;
    tensorlend_lease *lease = NULL;
    int status = 1;

    if (tensorlend_connect(NULL, &client) == TENSORLEND_OK &&
        tensorlend_wait_for(client, "camera/front", ten_seconds, &lease) == TENSORLEND_OK) {
        const tensorlend_tensor *image = tensorlend_lease_tensor(lease); /* borrowed from the lease */
        for (uint32_t i = 0; i < image->ndim; i++)
            printf("%s%" PRIu64, i == 0 ? "" : " x ", image->shape[i]);
        printf(" %s, first %d\n", tensorlend_dtype_name(image->dtype), *(const uint8_t *)image->data);
        status = 0;
    } else {
        fprintf(stderr, "%s\n", tensorlend_error_message());
    }
    tensorlend_lease_free(lease); /* from here on its memory may be reused */
    tensorlend_client_free(client);
    return status;
}
