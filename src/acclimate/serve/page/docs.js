/* Show the API documentation with Swagger UI. `validatorUrl: null` keeps it from asking another host. */
SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
