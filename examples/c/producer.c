/* Publishes an image: written where its readers will find it, without a copy.
 *
 *     cc producer.c -o producer $(pkg-config --cflags --libs tensorlend)
 */
#include <stdio.h>
#include <string.h>
#include <tensorlend.h>

static int failed(const char *doing) {
    fprintf(stderr, "%s: %s\n", doing, tensorlend_error_message());
    return 1;
}

int main(void) {
    const uint64_t shape[] = {480, 640, 3};
    tensorlend_client *client = NULL;
    tensorlend_draft *image = NULL;
    int status = 0;

    if (tensorlend_connect(NULL, &client) != TENSORLEND_OK)
        return failed("connect"); /* to $TENSORLEND_SOCKET, the user's daemon, or the system's */
    if (tensorlend_create(client, TENSORLEND_U8, 3, shape, &image) != TENSORLEND_OK) {
        status = failed("create");
    } else {
        memset(tensorlend_draft_data(image), 128, tensorlend_draft_bytes(image));
        if (tensorlend_publish(&image, "camera/front", NULL) != TENSORLEND_OK)
            status = failed("publish");
        else
            puts("published camera/front");
    }
    tensorlend_draft_free(image); /* NULL by now, if it was published */
    tensorlend_client_free(client);
    return status;
}
